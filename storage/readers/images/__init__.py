"""Readers of images and videos.

Folders, LMDB databases, TIFF stacks and videos. A sample is an image, a page or a frame.
Headers are not trusted.
"""
