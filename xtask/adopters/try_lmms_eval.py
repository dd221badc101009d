"""lmms-eval 0.7.3, a real evaluation of two tasks by its own command, plain and adopted.

The tasks are local files, and a small Llama with random weights stands in for a model, which cannot be
downloaded here. Everything else is lmms-eval's own: its command, its model `huggingface`, its tasks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import small_models
from running import run

TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: generate_until
doc_to_visual: !function visuals.none
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  max_new_tokens: 8
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
QUESTIONS = 3
MIB = 1 << 20


def main() -> None:
    folder = Path(sys.argv[1])
    size = prepare(folder)
    plain = evaluated(folder, "plain", [])
    adopted = evaluated(folder, "adopted", ["lowtide", "run", "--adopt", "lmms-eval", "--"])
    for task in ("sums", "words"):
        assert answers(folder / "plain", task) == answers(folder / "adopted", task), task
        assert len(answers(folder / "plain", task)) == QUESTIONS
    assert "lowtide" not in plain.stdout + plain.stderr
    said = adopted.stdout + adopted.stderr
    assert "Exception ignored" not in said, said
    lines = re.findall(r"LOWTIDE (.*)", said)
    print(f"weights {size / MIB:.1f} MiB", *lines, sep="\n")
    share = re.search(r"cleaning took ([\d.]+) %", said)
    assert share is not None, said
    after = [line for line in lines if line.startswith("after generate on")]
    assert 1 <= len(after) <= 2 * QUESTIONS, lines
    assert any(line.startswith("after generate_until on") for line in lines), lines
    # Pages of the host's allocator with a live block on them stay: the verdict may be `partial`.
    freed = [re.search(r"shutdown .* ([\d.,]+) MiB freed", line) for line in lines]
    assert any(found and float(found[1].replace(",", "")) > 0.8 * size / MIB for found in freed), (
        lines
    )


def prepare(folder: Path) -> int:
    """Writes the model, the tasks, and a file that shows lowtide's log. Returns the bytes of the model."""
    size = small_models.chat_llama(folder / "model")
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "visuals.py").write_text("def none(doc):\n    return []\n")
    for name in ("sums", "words"):
        file = tasks / f"{name}.json"
        rows = [{"question": f"{name} {at}", "answer": str(at)} for at in range(QUESTIONS)]
        file.write_text("\n".join(map(json.dumps, rows)))
        (tasks / f"{name}.yaml").write_text(TASK.format(name=name, file=file))
    # lmms-eval sets up no logging of Python's own, so that this file shows what lowtide logs.
    (folder / "sitecustomize.py").write_text(
        "import logging\n"
        "show = logging.StreamHandler()\n"
        "show.setFormatter(logging.Formatter('LOWTIDE %(message)s'))\n"
        "log = logging.getLogger('lowtide')\n"
        "log.addHandler(show)\n"
        "log.setLevel('INFO')\n"
    )
    return size


def evaluated(folder: Path, name: str, before: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs an evaluation with lmms-eval's own command."""
    command = [*before, "python", "-m", "lmms_eval", "--model", "huggingface"]
    model = f"pretrained={folder / 'model'},device=cpu,device_map=cpu,trust_remote_code=True"
    command += ["--model_args", model]
    command += ["--tasks", "sums,words", "--include_path", str(folder / "tasks")]
    command += ["--batch_size", "1", "--log_samples", "--output_path", str(folder / name)]
    variables = {
        "PYTHONPATH": str(folder),
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "HF_HOME": str(folder / "home"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return run(folder, command, **variables)


def answers(folder: Path, task: str) -> list[object]:
    """Returns the model's answers, as lmms-eval has stored them."""
    file = next(folder.rglob(f"*samples_{task}.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row["filtered_resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]


if __name__ == "__main__":
    main()
