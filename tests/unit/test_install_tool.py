"""`tools/install.py`: uv is told what pip's settings say."""

from tools.install import uv_settings

LISTED = """\
:env:.find-links='/one /two'
:env:.timeout='60'
global.cert='/certificates.pem'
global.index-url='https://global.test/simple'
install.index-url='https://install.test/simple'
"""


def test_uv_takes_packages_from_where_pip_does() -> None:
    assert uv_settings(LISTED, {}) == {
        "UV_FIND_LINKS": "/one,/two",
        "UV_DEFAULT_INDEX": "https://install.test/simple",
        "SSL_CERT_FILE": "/certificates.pem",
    }


def test_what_uv_was_told_by_the_user_counts() -> None:
    given = {"UV_DEFAULT_INDEX": "https://mine.test/simple", "SSL_CERT_FILE": "/mine.pem"}
    assert uv_settings(LISTED, given) == {"UV_FIND_LINKS": "/one,/two"}


def test_nothing_is_told_where_pip_has_no_settings() -> None:
    assert uv_settings("", {}) == {}
