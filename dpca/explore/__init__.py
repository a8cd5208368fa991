"""A local page that shows images, arrays, models and stores; `dpca explore` serves it.

`originals` reads samples of stacks and finds names, `sources` reads images and arrays that were not ingested,
`decoders` makes reconstructions, `pictures` makes pictures of samples, `explorer` computes the content, `live` follows
a fit; these modules do not depend on the page. `markup` formats the content as HTML, `widgets` has the widgets,
`gallery` the samples to choose from, `page` the rest, `tasks` runs slow work in threads, and `server` controls access.
"""
