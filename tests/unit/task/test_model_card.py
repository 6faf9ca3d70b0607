"""A model card is read where Markdown is drawn: the names in it are text."""

from __future__ import annotations

from retina_dist.task.model_card import as_markdown


def test_names_of_others_are_text() -> None:
    nasty = '<img src=x onerror="alert(1)">|a\nb'
    card = {"Model": {"name": nasty, "classes": nasty}}
    text = as_markdown(card)
    assert "<img" not in text
    assert '| classes | &lt;img src=x onerror="alert(1)"&gt;\\|a b |' in text
