"""The project URLs of wheel and sdist: from the remote of the clone, without secrets, and never of a folder."""

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hatch_build import origin_of, web_page
from tests.conftest import ROOT

CODE_HOST = "https://code.example.com/team/pubsub-spark"
URLS = [
    f"Repository, {CODE_HOST}",
    f"Documentation, {CODE_HOST}#readme",
    f"Issues, {CODE_HOST}/issues",
    f"Changelog, {CODE_HOST}/blob/HEAD/CHANGELOG.md",
]


@pytest.mark.parametrize(
    "address",
    [
        CODE_HOST,
        f"{CODE_HOST}/",
        f"{CODE_HOST}.git",
        "https://name:secret@code.example.com/team/pubsub-spark.git",
        "git@code.example.com:team/pubsub-spark.git",
        "code.example.com:/team/pubsub-spark",
        "ssh://git@code.example.com:2222/team/pubsub-spark.git",
        "git://code.example.com/team/pubsub-spark.git",
    ],
)
def test_every_form_of_an_address(address: str):
    """Git's forms of one address result in the same page, without the name of the user that cloned it."""
    assert CODE_HOST == web_page(address)


def test_host_with_a_port():
    """A web address keeps its scheme and its port."""
    assert "http://git.lan:3000/team/p" == web_page("http://git.lan:3000/team/p.git")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "../origin",
        "/srv/git/p.git",
        "file:///srv/git/p.git",
        "C:\\p",
        "http://127.0.0.1:3000/p",
        "https://localhost/p",
    ],
)
def test_address_that_users_do_not_reach(address: str):
    """A folder and this machine have no page."""
    assert web_page(address) is None


def test_folder_inside_another_clone(tmp_path: Path):
    """Sources that were unpacked in another project's clone do not take that project's address."""
    clone(tmp_path)
    (tmp_path / "inside").mkdir()

    assert (CODE_HOST, "") == (origin_of(tmp_path), origin_of(tmp_path / "inside"))


def test_build_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine without git can also build."""
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")

    assert "" == origin_of(tmp_path)


def test_metadata_of_a_build(tmp_path: Path):
    """A build in a clone has its URLs, and so has a build from that build's sdist, which is no clone."""
    clone(sources := unpacked(build(ROOT, tmp_path / "first"), tmp_path / "sources"))
    (sources / "PKG-INFO").unlink()
    from_clone = build(sources, tmp_path / "second")
    from_sdist = build(unpacked(from_clone, tmp_path / "released"), tmp_path / "third")

    assert [URLS, URLS] == [shown_urls(from_clone), shown_urls(from_sdist)]


def clone(folder: Path) -> None:
    """Make the folder a clone of the code host."""
    for words in (["init", "--quiet"], ["remote", "add", "origin", CODE_HOST]):
        subprocess.run(["git", *words], cwd=folder, check=True)


def build(sources: Path, target: Path) -> Path:
    """Return the folder with the wheel and the sdist of these sources."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
    ended = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, ended.stderr
    return target


def unpacked(built: Path, folder: Path) -> Path:
    """Return the root of the sources in the sdist."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    [root] = folder.iterdir()
    return root


def shown_urls(built: Path) -> list[str]:
    """Return the lines `Project-URL` of the wheel's metadata."""
    [wheel] = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name)).get_all("Project-URL", [])
