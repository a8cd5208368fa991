"""The parameters of all estimators, each declared once.

A declaration states the type and range, the default, the documentation, the option of the command line if there is
one, and whether stores keep the value. The checks, docstrings, options, keys of job files and stores follow from it.
This room imports only the standard library, because a command line is parsed before any other library is imported.
"""
