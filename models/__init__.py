"""Flax modules: ResNet v1.5, from the 8 layers of the proxies to ResNet-50, and its layers."""
