"""Passwords, tokens and keys out of whatever is written or shown.

Settings are used as they are; `redacted` is for their copies in files, in words, in errors and in MLflow.
"""

from __future__ import annotations

import re
from typing import Any

MASK = "***"

# What an authority has before its host: "user:password@", or a token alone. A password may hold "@", or "/" where it was not
# quoted; "HOST:PORT/a@b" has none.
_USER = re.compile(
    r"(?<=://)(?:[^\s/@:\"<>]{0,99}:(?!\d{1,5}(?:[/?#]|$))[^\s@\"<>]{0,999}@|[^\s/@?#\"<>]{0,999}@)(?:[^\s/@\"<>]{0,999}@)*"
)
# abfs://CONTAINER@ACCOUNT… and the like name a container there.
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://[^\s/@:]*@", re.IGNORECASE)
# All values of a URL's query and fragment: SAS and presigned URLs, ?token=, #access_token=.
_QUERY = re.compile(r"(?<=://)([^\s?#\"<>]{0,2000})([?#][^\s\"<>]*)")
_PARAMETER = re.compile(r"(?<=[=])[^&?#]+|(?<=[?#&])[^&?#=]{24,}(?=$|[&?#])")
# NAME=VALUE and NAME: VALUE of connection strings, environment variables, options, headers and JSON.
_NAMED = re.compile(
    r"""(?ix) (?P<name> (?<![\w.-]) [\w.-]{0,60}? (?: account_?key | access_?key(?:_?id)? | shared_?access_?signature | api_?key
        | sas_?token | passw(?:or)?d | pwd | secret | credentials? | auth_?token | access_?token | tracking_token
        | (?<![a-z0-9_]) (?:token | sig | signature | authorization) ) ["']? )
    (?P<equals> \s*=\s* | :\s+ | (?<=["']):\s* )
    (?P<value> "[^"]*" | '[^']*' | (?: (?:bearer|basic) \s+ )? [^\s"';]+ )"""
)
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")


def redacted(text: str) -> str:
    """`text` without what gives access: users and passwords of URLs, all values of their queries, secrets given by name.

    >>> redacted("https://me:pass@example.org/mlflow, az://box/run?sv=2024&sig=abc%3D")
    'https://example.org/mlflow, az://box/run?sv=***&sig=***'
    >>> redacted("AccountName=mine;AccountKey=abc==;EndpointSuffix=core.windows.net")
    'AccountName=mine;AccountKey=***;EndpointSuffix=core.windows.net'
    """
    if "://" in text:
        containers = iter(_CONTAINER.findall(text))
        text = _CONTAINER.sub("\0", text)
        text = _USER.sub("", text)
        text = re.sub("\0", lambda match: next(containers), text)
        text = _QUERY.sub(lambda match: match[1] + _without_values(match[2]), text)
    text = _NAMED.sub(
        lambda match: f"{match['name']}{match['equals']}{_masked(match['value'])}", text
    )
    return _HEADER.sub(rf"\1 {MASK}", text)


def redacted_tree(value: Any) -> Any:
    """The same of all text in dictionaries, lists and tuples; everything else as it is."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, dict):
        return {key: redacted_tree(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redacted_tree(inner) for inner in value)
    return value


def _without_values(query: str) -> str:
    values = query.rstrip("])}',;:.")  # without what belongs to the sentence around a URL
    return _PARAMETER.sub(MASK, values) + query[len(values) :]


def _masked(value: str) -> str:
    quote = value[0] if value[0] in "\"'" else ""
    return f"{quote}{MASK}{quote}"
