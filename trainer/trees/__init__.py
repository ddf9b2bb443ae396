"""Gradient-boosted trees of LightGBM and scikit-learn: trained on a table's columns, exported as a SavedModel."""
