"""The ground: array namespaces, dense and 8-bit products, the arithmetic that every room above may use."""
