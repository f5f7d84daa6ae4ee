"""Building blocks of models; each computes through the kernels of the injected Device."""
