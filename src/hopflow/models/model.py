"""Model: a network that a config file can describe."""

from torch import nn


class Model(nn.Module):
    """Base class of hopflow's networks: each constructor argument is also an attribute of the same name.

    `save_pretrained` stores these arguments, and `from_pretrained` builds the network from them.
    """
