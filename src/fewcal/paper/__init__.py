"""The paper's tables and figures on your features, with the paper's figures beside yours."""
