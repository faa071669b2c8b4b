"""What a training of a planned size needs before there is a machine for it: memory, step time, hours, cost.

============  ========================================================================================================
file          what it does
============  ========================================================================================================
workload      what one row of a model costs, counted on shapes: products, memory traffic, lookups
rates         how fast devices and links are: documented, or measured
cluster       machines, their devices, and what lies between them
placing       which device holds which part of which table: TorchRec's planner
plan          memory of a device and parts of a step, from the four above
calibrate     the rates of this machine
figure        step time by part against the number of devices
============  ========================================================================================================

No table is ever made: a model of a billion embedding rows is built on torch's meta device.
"""

from crossrank.experiments.planning.calibrate import calibrate
from crossrank.experiments.planning.cluster import Cluster
from crossrank.experiments.planning.estimate import Memory, Plan, StepTime, make_plan
from crossrank.experiments.planning.rates import DEVICES, LINKS, RATES_FILE, Device, Link, find_device
from crossrank.experiments.planning.workload import Table, Workload, planned_features

__all__ = [
    "DEVICES",
    "LINKS",
    "RATES_FILE",
    "Cluster",
    "Device",
    "Link",
    "Memory",
    "Plan",
    "StepTime",
    "Table",
    "Workload",
    "calibrate",
    "find_device",
    "make_plan",
    "planned_features",
]
