"""`KernelPCA` and `SpectralClustering`: nonlinear components of data of any size.

`landmarks` chooses the samples that stand for all others.
`kernel_methods` has the methods, `kernel_model` has scores, pre-images and stores.
"""
