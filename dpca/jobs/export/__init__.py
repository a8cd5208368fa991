"""Writes the samples of any store as files that other programs read.

``formats`` lists the formats, ``sample_files`` encodes one sample, ``value_files`` has files of all samples,
``pyramid`` OME-Zarr, ``file_names`` the names of files, and ``export`` the job.
"""
