"""A trained run behind HTTP: ``crossrank serve``.

::

    server     the processes: binds, starts workers, brings a killed one back, passes signals on
    app        what each path answers
    gate       who may ask, what every answer carries
    journal    each request, in the log and the metrics
    connections  how long a connection may take, and how much it may send
    shortcut   scores for heads that were let through before
    bodies     reading what was sent, at a bounded cost
    protocol   the Open Inference Protocol v2, with its binary tensors
    batching   rows of many requests scored together
    served     the model behind it
    metrics    what Prometheus reads
"""
