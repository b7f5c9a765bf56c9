"""Networks. `resnet` holds ResNet v1.5, from the proxies' 8 layers to ResNet-50."""
