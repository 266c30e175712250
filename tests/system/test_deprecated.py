"""An old name of a module works for one release, with a warning that names the new one."""

import pytest

import hopflow as hf


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("data", "Named", "NamedCorpus"),
        ("data", "neighbours", "local_corpora"),
        ("recipes", "Plan", "Requirements"),
        ("recipes", "plan", "requirements"),
    ],
)
def test_an_old_name_returns_the_new_object_with_a_warning(module, old, new):
    home = getattr(hf, module)
    with pytest.warns(DeprecationWarning, match=rf"hopflow.{module}.{old} is now hopflow.{module}.{new}"):
        assert getattr(home, old) is getattr(home, new)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'hopflow.data' has no attribute 'nothing'"):
        _ = hf.data.nothing
