"""Programs: each reads a source, and writes a store, a quality record and a page of pictures."""
