"""Components of samples with missing values, by expectation-maximization."""
