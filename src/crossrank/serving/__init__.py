"""From a run folder to scores."""
