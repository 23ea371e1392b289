"""The README says what the code does."""

from deploy.readme import README, rewritten


def test_the_settings_table_is_made_from_the_code() -> None:
    """Renew it with `python -m deploy.readme`."""
    text = README.read_text(encoding="utf-8")
    assert rewritten(text) == text
