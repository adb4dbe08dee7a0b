"""When batches will end: from the work that is left and the rate at which lines are committed."""
