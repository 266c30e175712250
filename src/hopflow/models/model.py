"""Model: a network that a config file can describe."""

from typing import Any, ClassVar

from torch import nn


class Model(nn.Module):
    """Base class of hopflow's networks: each constructor argument is also an attribute of the same name.

    `save_pretrained` stores these arguments, and `from_pretrained` builds the network from them.
    """

    older_defaults: ClassVar[dict[str, Any]] = {}
    """Arguments that were added later, with the values that describe the networks saved before, where these are not the
    defaults."""
