"""Evidence: the tables and figures of the literature, made again. No part of the library imports it."""
