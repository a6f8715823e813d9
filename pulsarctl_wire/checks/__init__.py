"""What is wrong with captured or live traffic: rules, each a class with its documentation."""
