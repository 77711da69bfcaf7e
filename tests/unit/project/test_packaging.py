"""The installed package: metadata, the shim that Spark looks for, the typed marker, no surprise imports."""

import email
import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import pubsub_spark
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pyspark_is_not_forced():
    """A cluster brings its own PySpark, so none of the plain dependencies is PySpark."""
    assert [] == [line for line in PROJECT["dependencies"] if line.startswith("pyspark")]
    assert ["pyspark>=4.0"] == PROJECT["optional-dependencies"]["spark"]


def test_emulator_is_an_extra():
    """The connector needs no web server. The demo and the tests need the emulator."""
    extras = PROJECT["optional-dependencies"]
    names = {re.split(r"[^\w-]", line)[0] for line in extras["emulator"] if not line.startswith("pubsub-spark")}

    assert {
        "cryptography",
        "jinja2",
        "prometheus-client",
        "pyyaml",
        "starlette",
        "urllib3",
        "uvicorn",
    } == names
    assert not [line for line in PROJECT["dependencies"] if re.split(r"[^\w-]", line)[0] in names]
    assert "pubsub-spark[cli,protoc]" in extras["emulator"]
    assert "pubsub-spark[emulator,spark]" in extras["demo"]
    assert "pubsub-spark[asyncapi,demo,docs,emulator-transforms]" in extras["test"]
    assert ["mini-racer>=0.12"] == extras["emulator-transforms"]


@pytest.mark.parametrize("absent", ["starlette", "uvicorn", "yaml"])
def test_emulator_says_what_to_install(absent: str):
    """Without its extra the command and the import end with one sentence."""
    hidden = f"import sys; sys.modules[{absent!r}] = None; "
    sentence = f"The emulator needs `{absent}`. Install pubsub-spark with its extra `emulator`."
    for code, line in (
        ("from pubsub_spark.cli import app; app(['emulator', '--port', '0'])", sentence),
        ("from pubsub_spark.emulator.background import main; sys.exit(main('{\"port\": 0}'))", sentence),
        ("from pubsub_spark.emulator import Emulator", f"ModuleNotFoundError: {sentence}"),
    ):
        ended = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, cwd=ROOT)

        assert 1 == ended.returncode
        assert line == ended.stderr.splitlines()[-1]


def test_emulator_starts_without_what_most_tests_do_not_need():
    """Columns, V8 and object stores are imported when a schema, a transform or an export asks for them."""
    code = (
        "import sys; from pubsub_spark.emulator import Emulator; emulator = Emulator().start();"
        "topic = 'projects/p/topics/abc'; emulator.create_topic(topic); emulator.publish(topic, b'x'); emulator.stop();"
        "print(*({'pyarrow', 'numpy', 'ptars', 'fastavro', 'obstore', 'py_mini_racer', 'duckdb'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert ("", 0) == (ended.stdout.strip(), ended.returncode), ended.stderr


def test_server_starts_without_clients():
    """`emulator start` waits for the import of the messages of the API, and of nothing that serves HTTP or commands.

    The package of the messages that is imported later has the same ones.
    """
    code = (
        "import sys, pubsub_spark.emulator.background;"
        "from pubsub_spark.emulator.api.messages_alone import import_messages; import_messages();"
        "import pubsub_spark.emulator.serve; from pubsub_spark.emulator.api import protos;"
        "absent = {'google.pubsub_v1', 'google.auth', 'google.api_core', 'cryptography', 'urllib3'};"
        "absent |= {'starlette', 'uvicorn', 'h11', 'yaml', 'typer', 'click', 'pubsub_spark.cli', 'pyarrow', 'numpy'};"
        "print(absent & set(sys.modules));"
        "from google.pubsub_v1 import PublisherClient, types; from google.pubsub_v1.types import pubsub, schema;"
        "print(types.Topic.pb() is protos.Topic, schema.Schema.pb() is protos.Schema, pubsub.Topic is types.Topic)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert ["set()", "True True True"] == ended.stdout.splitlines(), ended.stderr


def test_rows_and_acks_need_no_pandas():
    """Its import takes a new worker or driver process of Spark 0.3 s. Arrow imports it for a Python value."""
    code = (
        "import sys; import pubsub_spark.source; from pubsub_spark.codec.envelope import envelope, received;"
        "from pubsub_spark.read.pull import acks; from google.pubsub_v1.types import StreamingPullResponse;"
        "messages = [{'ack_id': f'ack-{n}', 'message': {'data': b'x'}} for n in range(20)];"
        "delivered = received([StreamingPullResponse.serialize({'received_messages': messages})]);"
        "rows = envelope(delivered.messages).num_rows; empty = acks.acknowledge_request('projects/p/subscriptions/s');"
        "sent = list(acks.requests(empty, delivered.receipts.column('ack_id'), acks.Window()));"
        "print(rows, len(sent), 'pandas' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert "20 1 False" == ended.stdout.strip(), ended.stderr


def test_a_command_waits_for_its_own_imports():
    """`emulator start` imports neither other families of commands, nor a client of HTTP, nor the emulator itself."""
    code = (
        "import sys; from pubsub_spark.cli import app; app(['emulator', 'start', '--help'], standalone_mode=False);"
        "absent = {'topics', 'subscriptions', 'snapshots', 'schemas', 'backlog', 'dead_letters', 'staging', 'doctor'};"
        "absent = {f'pubsub_spark.cli.{name}' for name in absent} | {'pubsub_spark.emulator.emulator'};"
        "absent |= {'urllib.request', 'http.client', 'ssl', 'grpc', 'google.protobuf', 'yaml', 'rich', 'pyarrow'};"
        "print(absent & set(sys.modules))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    assert "set()" == ended.stdout.splitlines()[-1], ended.stderr


def test_command_says_what_to_install():
    """Executors do not need the command: without its extra it ends with one sentence."""
    code = "import sys; sys.modules['typer'] = None; from pubsub_spark.cli import app; app()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)

    sentence = "The command `pubsub-spark` needs `typer`. Install pubsub-spark with its extra `cli`.\n"
    assert (1, sentence) == (ended.returncode, ended.stderr)


def test_console_script_is_installed():
    """`pubsub-spark` starts the typer application."""
    [script] = metadata.entry_points(group="console_scripts", name="pubsub-spark")

    assert "pubsub_spark.cli:app" == script.value


def test_types_are_announced():
    """Type checkers of users see the annotations."""
    assert (ROOT / "pubsub_spark" / "py.typed").exists()
    assert PROJECT["name"] == metadata.metadata("pubsub-spark")["Name"]


@pytest.mark.parametrize("name", ["pubsub", "pubsub_spark"])
def test_shims_hold_the_source(name: str):
    """Spark imports `pyspark_*` modules and registers their `DefaultSource`, one each."""
    from pubsub_spark.source import PubSubDataSource

    shim = importlib.import_module(f"pyspark_{name}")

    assert issubclass(shim.DefaultSource, PubSubDataSource)
    assert name == shim.DefaultSource.name()


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pubsub_spark.cli", "pyspark"),
        ("pubsub_spark.cli", "google.cloud"),
        ("pubsub_spark.cli", "pyarrow"),
        ("pubsub_spark.emulator", "pyspark"),
        ("pubsub_spark.source", "pubsub_spark.emulator"),
        ("pubsub_spark.source", "matplotlib"),
        ("pubsub_spark.source", "google.pubsub_v1"),
        ("pubsub_spark.source", "typer"),
    ],
)
def test_imports_stay_apart(module: str, absent: str):
    """The command answers at once, the emulator needs no Spark, and the connector no emulator."""
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode


def test_exported_names_exist():
    """Every name that `__all__` promises exists."""
    for name in getattr(pubsub_spark, "__all__", ()):
        assert hasattr(pubsub_spark, name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist of this tree, and the wheel unpacked in `installed`."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    ended = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, check=False)
    assert 0 == ended.returncode, ended.stderr
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder


def test_wheel_holds_the_package_alone(built: Path):
    """The wheel has the package, the two modules that Spark looks for, and its metadata: no test, no cache."""
    [wheel] = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pubsub_spark").rglob("*.py")}

    assert ours <= {*names}
    assert {"pubsub_spark/py.typed", "pyspark_pubsub.py", "pyspark_pubsub_spark.py"} <= {*names}
    assert {"pubsub_spark", "pyspark_pubsub.py", "pyspark_pubsub_spark.py"} == {
        top for name in names if not (top := name.partition("/")[0]).endswith(".dist-info")
    }
    assert not [name for name in names if "__pycache__" in name]


def test_wheel_holds_the_page(built: Path):
    """The templates, the stylesheet and the script of the emulator's page are files of the package."""
    page = Path("pubsub_spark") / "emulator" / "page"
    ours = {path.relative_to(ROOT) for folder in ("templates", "static") for path in (ROOT / page / folder).iterdir()}

    assert page / "templates" / "base.html" in ours
    assert all((built / "installed" / path).is_file() for path in ours)


def test_sdist_holds_what_the_tests_need(built: Path):
    """The sdist has the sources, the tests, the documents and the Makefile, and nothing of an environment."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}

    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "CHANGELOG.md", "CONTRIBUTING.md"} <= names
    assert {"pubsub_spark/source.py", "tests/conftest.py", "docs/cli.md", "conf/log4j2.properties"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_metadata_of_the_wheel(built: Path):
    """The metadata that an index shows: name, version, README, licence, every extra, the command, the plugin."""
    [wheel] = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    files = {name.rpartition("/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
    told = email.message_from_bytes(archive.read(files["METADATA"]))
    entries = archive.read(files["entry_points.txt"]).decode()

    assert (PROJECT["name"], PROJECT["version"], "Apache-2.0", "text/markdown") == (
        told["Name"],
        told["Version"],
        told["License-Expression"],
        told["Description-Content-Type"],
    )
    assert {*PROJECT["optional-dependencies"]} == {*told.get_all("Provides-Extra", [])}
    assert str(told.get_payload()).startswith("# pubsub-spark")
    assert "pubsub-spark = pubsub_spark.cli:app" in entries
    assert "pubsub_spark.emulator.pytest_plugin = pubsub_spark.emulator.pytest_plugin" in entries


def test_wheel_without_extras(built: Path):
    """Without any extra the package can be imported, and the emulator names the missing extra."""
    absent = ["pyspark", "starlette", "uvicorn", "yaml", "matplotlib", "pandas", "h11", "typer", "rich", "grpc_tools"]
    code = f"""
import sys
sys.path.insert(0, {str(built / "installed")!r})
sys.modules.update(dict.fromkeys({absent!r}))
import pubsub_spark, pubsub_spark.options, pubsub_spark.emulator.pytest_plugin
assert pubsub_spark.__file__.startswith({str(built)!r})
try:
    import pubsub_spark.emulator
    pubsub_spark.emulator.Emulator
except ModuleNotFoundError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=built, check=False)

    assert 0 == ended.returncode, ended.stderr
    assert re.fullmatch(r"The emulator needs `\w+`. Install pubsub-spark with its extra `emulator`.\n", ended.stdout)


@pytest.mark.parametrize("line", ["", "pytest_plugins = ['pubsub_spark.emulator.pytest_plugin']\n"])
def test_pytest_finds_the_fixtures_by_itself(built: Path, tmp_path: Path, line: str):
    """If the wheel is installed a test has the emulator's fixtures without a word, and may also name the plugin."""
    (tmp_path / "test_it.py").write_text(
        "import os, sys\n" + line + "def test_unused():\n"
        "    assert 'pubsub_spark.emulator.emulator' not in sys.modules\n"
        "def test_used(pubsub_emulator, pubsub_emulator_host):\n"
        "    assert os.environ['PUBSUB_EMULATOR_HOST'] == pubsub_emulator_host\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(built / "installed")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_it.py"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)

    assert "2 passed" in ended.stdout, ended.stdout + ended.stderr


def test_connect_is_an_extra_of_all_that_its_client_needs():
    """The extra `connect` has the requirements of PySpark's own extra, and zstandard, which only newer ones name."""
    connect = PROJECT["optional-dependencies"]["connect"]

    assert "pyspark[connect]>=4.0" in connect
    assert any(line.startswith("zstandard") for line in connect)
