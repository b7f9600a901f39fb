"""Files of features: reading and writing them."""
