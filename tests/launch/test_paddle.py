"""The environment of Paddle's launcher -> our arguments, as tables."""

import pytest

import hetero_pipe as hp
from hetero_pipe.launch.paddle import read_role

# As paddlepaddle 3.3.1 sets it for --server_num 2 --trainer_num 2, but for paths and PADDLE_GLOO_*.
JOB = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:40001,10.0.0.1:40002",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:40003,10.0.0.1:40004",
    "PADDLE_TRAINERS_NUM": "2",
    "POD_IP": "10.0.0.1",
    "PADDLE_NNODES": "1",
    "PADDLE_WITH_GLOO": "0",
}
SERVER = {**JOB, "TRAINING_ROLE": "PSERVER", "PADDLE_ROLE": "PSERVER", "PADDLE_PORT": "40002"}
TRAINER = {
    **JOB,
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_ROLE": "TRAINER",
    "PADDLE_PORT": "40004",
    "PADDLE_TRAINER_ID": "1",
}
TWO_HOSTS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170,10.0.0.2:6170",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.2:6171,10.0.0.2:6172,10.0.0.3:6171",
    "PADDLE_TRAINERS_NUM": "3",
}


def test_other_processes_have_no_role():
    assert read_role({"PATH": "/bin", "PADDLE_TRAINER_ID": "0"}) is None


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        (SERVER, "--listen 10.0.0.1:40002 --num-workers 2"),
        ({**SERVER, "PADDLE_PORT": "40001"}, "--listen 10.0.0.1:40001 --num-workers 2"),
        # Two servers of one port, on two hosts: POD_IP tells.
        (
            {**SERVER, **TWO_HOSTS, "POD_IP": "10.0.0.2", "PADDLE_PORT": "6170"},
            "--listen 10.0.0.2:6170 --num-workers 3",
        ),
        # --servers 127.0.0.1:...: POD_IP is the host's all the same.
        (
            {
                **SERVER,
                "PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:6170,127.0.0.1:6171",
                "PADDLE_PORT": "6171",
            },
            "--listen 127.0.0.1:6171 --num-workers 2",
        ),
        (
            {**SERVER, "HETERO_PIPE_DATA_DIR": "/var/lib/job"},
            "--listen 10.0.0.1:40002 --num-workers 2 --data-dir /var/lib/job/server-1 "
            "--durability process",
        ),
        ({**SERVER, "HETERO_PIPE_DATA_DIR": ""}, "--listen 10.0.0.1:40002 --num-workers 2"),
        (
            TRAINER,
            "--servers 10.0.0.1:40001,10.0.0.1:40002 --worker 1 --num-workers 2 "
            "--coordinator 10.0.0.1:40003",
        ),
        (
            {**TRAINER, **TWO_HOSTS, "POD_IP": "10.0.0.3", "PADDLE_TRAINER_ID": "2"},
            "--servers 10.0.0.1:6170,10.0.0.2:6170 --worker 2 --num-workers 3 "
            "--coordinator 10.0.0.2:6171",
        ),
    ],
)
def test_environment_is_read_as_arguments(environment, arguments):
    role = read_role(environment)
    assert role is not None
    assert role.arguments() == arguments.split()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "needs one with TRAINING_ROLE=PSERVER beside it"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": None}, "got none in PADDLE_PSERVERS_IP_PORT_LIST"),
        ({"PADDLE_TRAINER_ENDPOINTS": None}, "needs one with TRAINING_ROLE=TRAINER beside it"),
        (
            {"PADDLE_TRAINER_ID": None},
            "TRAINING_ROLE=TRAINER needs PADDLE_TRAINER_ID, which is not",
        ),
        ({"PADDLE_TRAINER_ID": "-1"}, "PADDLE_TRAINER_ID is a whole number from 0, got '-1'"),
        ({"PADDLE_TRAINERS_NUM": "0"}, "PADDLE_TRAINERS_NUM is a whole number from 1, got '0'"),
        ({"TRAINING_ROLE": "HETER_TRAINER"}, "PSERVER or TRAINER, got 'HETER_TRAINER'"),
        ({"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": None}, "needs PADDLE_PORT, which is not set"),
        (
            {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "1"},
            r"names this server, 10.0.0.1:1 \(POD_IP:PADDLE_PORT\), got 10.0.0.1:40001, ",
        ),
    ],
)
def test_an_environment_that_lacks_something_is_refused_with_its_name(changed, said):
    environment = {k: v for k, v in {**TRAINER, **changed}.items() if v is not None}
    with pytest.raises(hp.ConfigError, match=said):
        read_role(environment)
