"""The object models of `weir.dev/v1alpha1`, and the CRDs generated from them."""
