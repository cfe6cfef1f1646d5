"""Cluster files: both ways, and every mistake told with its file, its part and its key."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings

from hetero_pipe.cluster import (
    Rate,
    Spread,
    cluster_from_json,
    cluster_from_toml,
    cluster_to_json,
    cluster_to_toml,
    load_cluster,
    preset,
    save_cluster,
    save_rates,
)
from hetero_pipe.errors import ConfigError
from tests.cluster.clusters import clusters, known

EXAMPLE = Path(__file__).parents[2] / "examples" / "ctr" / "cluster.toml"

SMALL = """\
[[host]]
name = "a"

[[host.device]]
kind = "cpu"
cores = 8
memory = "64GiB"

[[host.device]]
kind = "gpu"
count = 2
memory = "80GB"
flops = {float32 = "19.5TFLOP/s"}

[[host.link]]
between = ["gpu", "cpu"]
kind = "PCIe"
bandwidth = "32GB/s"
latency = "5us"
"""


# ------------------------------------------------------------------ both ways


@given(clusters())
@settings(max_examples=100, deadline=None)
def test_a_cluster_is_what_its_texts_say(cluster):
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster
    assert cluster_from_json(cluster_to_json(cluster)) == cluster


@pytest.mark.parametrize("name", ["c.toml", "c.json"])
def test_a_file_holds_what_was_saved(name, tmp_path):
    save_cluster(known(), tmp_path / name)
    assert load_cluster(tmp_path / name) == known()
    assert os.listdir(tmp_path) == [name]


def test_quantities_are_written_with_units_that_people_read():
    text = cluster_to_toml(cluster_from_toml(SMALL))
    assert text == SMALL


def test_the_example_has_what_it_says():
    cluster = load_cluster(EXAMPLE)
    assert cluster.num_devices == 4 + 2 * 9
    assert cluster.price_per_hour == pytest.approx(4 * 4.08 + 2 * 20)
    near = cluster.path("server-1", "trainer-0/gpu:0")
    assert len(near.edges) < len(cluster.path("server-2", "trainer-0/gpu:0").edges)
    assert near.bandwidth == 25e9 / 8


def test_keys_beside_a_preset_replace_its_own():
    text = '[[host]]\nname = "t"\npreset = "8xA100-40-NVLink"\nprice_per_hour = 1.5\n'
    (host,) = cluster_from_toml(text).hosts
    assert (host.name, host.price_per_hour) == ("t", 1.5)
    assert host.devices == preset("8xA100-40-NVLink").devices


def test_a_device_may_be_a_preset_too():
    text = SMALL.replace('kind = "gpu"\ncount = 2\nmemory = "80GB"', 'preset = "H100"\ncount = 4')
    gpu = cluster_from_toml(text).hosts[0].devices[1]
    assert (gpu.count, gpu.model, gpu.peak("float32")) == (4, "NVIDIA H100 SXM5", 19.5e12)


def test_numbers_are_bytes_and_seconds():
    text = SMALL.replace('"64GiB"', "1e9").replace('"5us"', "0").replace('"32GB/s"', "32_000")
    host = cluster_from_toml(text).hosts[0]
    assert host.memory == 10**9
    assert (host.links[0].latency, host.links[0].bandwidth) == (0, 32000)


# ------------------------------------------------------------------ measured rates


def rate(host, seconds):
    return Rate("grpc_call", host, Spread.of([seconds]))


def test_rates_go_to_the_end_of_a_file_and_leave_its_comments(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(f"# mine\n{SMALL}")
    for seconds in (1e-4, 2e-4):
        save_rates(load_cluster(path).with_rates([rate("a", seconds)]), path)
    assert (
        path.read_text()
        == f"""\
# mine
{SMALL}
# Measured by hetero-pipe profile, which replaces all from here on.

[[rate]]
what = "grpc_call"
host = "a"
median = 0.0002
min = 0.0002
max = 0.0002
samples = 1
"""
    )
    assert load_cluster(path).rates == (rate("a", 2e-4),)


def test_a_file_with_rates_of_its_own_is_written_anew(tmp_path):
    path = tmp_path / "cluster.toml"
    save_cluster(cluster_from_toml(SMALL).with_rates([rate("a", 1.0)]), path)
    save_rates(load_cluster(path).with_rates([rate("a", 2.0)]), path)
    assert load_cluster(path).rates == (rate("a", 2.0),)


def test_rates_of_a_json_file_are_in_it(tmp_path):
    path = tmp_path / "cluster.json"
    save_cluster(cluster_from_toml(SMALL), path)
    save_rates(load_cluster(path).with_rates([rate("a", 2.0)]), path)
    assert json.loads(path.read_text())["rate"][0]["median"] == 2.0


# ------------------------------------------------------------------ refused

GPU = "c.toml: host 'a', device 'gpu': "
GPU_NEEDS = "c.toml: host 'a', device 'gpu' needs"
LINK = "c.toml: host 'a', link 1: "


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[[host]]", "[[hosts]]", "c.toml: unknown key 'hosts'; did you mean 'host'?"),
        (SMALL, "", "c.toml: a cluster needs a host, got none; add [[host]]"),
        (SMALL, "[host]\nname = 'a'\n", "c.toml: host needs to be a list of tables, [[host]], got"),
        (SMALL, "host = [1]", "c.toml: host None: needs a table of keys, got 1"),
        ("[[host]]", "[[host", "c.toml: a cluster is TOML, got "),
        ('name = "a"', "", "c.toml: host None: name is missing"),
        ('name = "a"', "name = 3", "c.toml: host 3: name needs to be a text, got 3"),
        (
            'name = "a"',
            'name = "a"\ncuont = 2',
            "host 'a': unknown key 'cuont'; did you mean 'count'?",
        ),
        ('name = "a"', 'name = "a"\ncount = "2"', "host 'a': count needs to be a number, got '2'"),
        ('name = "a"', 'name = "a"\ncount = 1.5', "host 'a' needs count of at least 1"),
        ('name = "a"', 'name = "a"\ndisk = 3', "host 'a': disk needs to be a table, got 3"),
        ('name = "a"', 'name = "a"\ndisk = {}', "host 'a', disk: capacity is missing"),
        ('name = "a"', 'name = "a"\naddresses = "x"', "addresses needs to be a list of texts, got"),
        ('name = "a"', 'name = "a"\npreset = "8xA100"', "host 'a': a preset of a host is one of"),
        ('memory = "80GB"', 'memry = "80GB"', f"{GPU}unknown key 'memry'; did you mean 'memory'?"),
        ('memory = "80GB"\n', "", f'{GPU}memory is missing; give it a quantity, like "80GiB"'),
        ('memory = "80GB"', 'memory = "80G"', f"{GPU}memory needs to be a quantity: a quantity is"),
        ('memory = "80GB"', "memory = -1", f"{GPU_NEEDS} memory of at least 1, got"),
        ('memory = "80GB"', "memory = true", f"{GPU}memory needs to be a number, got True"),
        ('memory = "80GB"', 'preset = "A100"', f"{GPU}a preset of a device is one of A100-40,"),
        ("count = 2", "count = 0", f"{GPU_NEEDS} count of at least 1, got count=0"),
        ("float32", "fp32", f"{GPU_NEEDS} flops of float64, float32, "),
        ('"19.5TFLOP/s"', '"fast"', "device 'gpu', flops: float32 needs to be a quantity: a rate"),
        ('"32GB/s"', '"-32GB/s"', f"{LINK}bandwidth needs to be a quantity: a quantity is a numb"),
        ('"32GB/s"', "-32", f"{LINK}the link between 'gpu' and 'cpu' needs bandwidth above 0"),
        ('"5us"', '"5GB"', f"{LINK}latency needs to be a quantity: a quantity is a number and one"),
        ('["gpu", "cpu"]', '["gpu"]', f"{LINK}between needs to be two names, got ['gpu']"),
        ('["gpu", "cpu"]', '["gqu", "cpu"]', "there is no 'gqu'; did you mean 'gpu'?"),
        ('"PCIe"', '"pcie"', f"{LINK}the link between 'gpu' and 'cpu' needs kind of "),
        ("[[host.link]]", "[[host.lnk]]", "host 'a': unknown key 'lnk'; did you mean 'link'?"),
        (
            "[[host.link]]",
            "[[link]]",
            "c.toml: host 'a' reaches each device from its cpu",
        ),
    ],
)
def test_a_mistake_is_told_with_its_file_its_part_and_its_key(old, new, said):
    assert old in SMALL
    with pytest.raises(ConfigError) as raised:
        cluster_from_toml(SMALL.replace(old, new, 1), where="c.toml")
    assert said in str(raised.value)
    assert str(raised.value).startswith("c.toml: ")


def test_a_device_without_a_kind_is_named_by_what_it_has():
    text = '[[host]]\nname = "a"\n[[host.device]]\nmemory = 1\ncores = 1\n'
    with pytest.raises(ConfigError, match="device None: kind is missing; give it a text"):
        cluster_from_toml(text)


def test_a_bad_rate_is_named_by_its_number():
    text = cluster_to_toml(cluster_from_toml(SMALL).with_rates([rate("a", 1.0)]))
    with pytest.raises(
        ConfigError, match=r"c.toml: rate 1: a measured value has its median between"
    ):
        cluster_from_toml(text.replace("min = 1.0", "min = 3.0"), where="c.toml")
    with pytest.raises(ConfigError, match=r"c.toml: a rate is of a host, one of a, got host='b'"):
        cluster_from_toml(text.replace('host = "a"', 'host = "b"'), where="c.toml")


def test_json_that_is_none_is_told():
    with pytest.raises(ConfigError, match=r"c.json: a cluster is JSON, got Expecting"):
        cluster_from_json("{", where="c.json")
    with pytest.raises(ConfigError, match="JSON: needs a table of keys, got 3"):
        cluster_from_json("3")


def test_a_file_that_is_not_there_or_is_neither_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"must be readable, got .*none\.toml: .*No such file"):
        load_cluster(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"ends in .toml or .json, got 'c.yaml'"):
        load_cluster("c.yaml")
    with pytest.raises(ConfigError, match=r"must be writable, got .*c\.toml"):
        save_cluster(known(), tmp_path / "none" / "c.toml")
