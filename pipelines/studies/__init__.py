"""Evidence: reproduced tables and figures of the literature. No part of the library imports it."""
