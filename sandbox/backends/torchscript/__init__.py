"""A step as a file of its own: TorchScript and torch.export."""
