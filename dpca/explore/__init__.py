"""A local page to look at a stack and at what a model makes of it; `dpca explore` serves it.

`originals` reads samples and finds names, `decoders` makes reconstructions, `explorer` says what is to be shown,
`live` follows a fit; none of them knows of pages. `page` lays out widgets, `tasks` keeps what takes time away from it,
`server` lets in whom it should.
"""
