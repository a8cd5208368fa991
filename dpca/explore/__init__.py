"""A local page that shows a stack, its model and its reconstructions; `dpca explore` serves it.

`originals` reads samples and finds names, `decoders` makes reconstructions, `explorer` computes the content, `live`
follows a fit; these modules do not depend on the page. `markup` formats the content as HTML, `page` lays out widgets,
`tasks` runs slow work in threads, and `server` controls access.
"""
