"""From a run folder to scores: whole tables, bundles that need no torch, a scorer for requests."""
