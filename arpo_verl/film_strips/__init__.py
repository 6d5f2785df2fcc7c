"""Episodes as film strips: for veRL's loggers while a run validates, and for its report."""
