"""Arguments as people write them."""

import pytest

from launch.options import one_setting_each


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("recipe --set a=1 b=2 --device cpu", "recipe --set=a=1 --set=b=2 --device cpu"),
        ("--set a=1 b=2 recipe -n 2", "--set=a=1 --set=b=2 recipe -n 2"),
        ("--set=a=1 b=2 recipe", "--set=a=1 --set=b=2 recipe"),
        ("--set a recipe", "--set=a recipe"),  # told as a setting without a value
        ("recipe --set a=-1 --set --device cpu", "recipe --set=a=-1 --set --device cpu"),
        ("--log-dir=x=y recipe", "--log-dir=x=y recipe"),
    ],
)
def test_a_recipe_may_follow_settings(written, read):
    assert one_setting_each(written.split()) == read.split()
