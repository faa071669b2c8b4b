"""Click logs made on the spot, whose truth is known."""
