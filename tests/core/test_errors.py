from slipway.core.errors import UserError


def test_an_unknown_name_offers_the_closest_with_its_command():
    error = UserError.unknown("engine", "tensorfow", ("tensorflow", "jax"), setting="train.engine")
    assert str(error).splitlines() == [
        "There is no engine 'tensorfow'.",
        "  setting:  train.engine = 'tensorfow'",
        "  allowed:  tensorflow, jax",
        "  closest:  tensorflow",
        "  fix:      --set train.engine=tensorflow",
    ]


def test_an_unknown_name_without_a_close_one_lists_what_exists():
    error = UserError.unknown("step", "xyz", ("train", "evaluate"), setting="--step")
    assert (error.allowed, error.nearest, error.fix) == ("train, evaluate", None, None)
    assert UserError.unknown("run", "xyz", ()).allowed == "none exists"
