"""The commands of python -m tfuse."""
