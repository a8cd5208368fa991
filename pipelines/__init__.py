"""Jobs a person runs: each takes what people have, and leaves a store, a quality record and a page of pictures."""
