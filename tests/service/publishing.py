"""Process that publishes a service's answers until it is killed: its folder, and the broker's port."""

import sys
import time
from pathlib import Path

from answering import CLASSES, Camera

from ekya.config.answer_sinks import MqttSpec
from ekya.results.storage.run_folder import RunFolder
from ekya.service.answers.publisher import Publisher


def main(folder: str, port: str) -> None:
    sinks = [MqttSpec(host="127.0.0.1", port=int(port))]
    publisher = Publisher(RunFolder(Path(folder)), sinks, CLASSES, lambda: [Camera("gate"), Camera("yard")])
    publisher.start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
