"""The rules, by what they are about; registry.py lists them in order."""
