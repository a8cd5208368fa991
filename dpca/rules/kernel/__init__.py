"""Rules of kernel PCA.

`kernel_covariance` accumulates the kernels with landmarks, `kha` is the kernel Hebbian algorithm.
`landmarks` chooses landmarks by randomly pivoted Cholesky, `gains` has the step sizes.
"""
