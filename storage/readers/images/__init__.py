"""Readers of images and videos.

Folders, LMDB databases, TIFF stacks and videos; one sample an image, a page or a frame.
Nothing in a header is trusted.
"""
