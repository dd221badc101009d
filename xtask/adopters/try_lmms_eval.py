"""lmms-eval 0.7.3, a real evaluation of two tasks by its own command, plain and adopted.

The tasks are local files, and a small Llama with random weights stands in for a model, which cannot be
downloaded here. Everything else is lmms-eval's own: its command, its model `huggingface`, its tasks.

A third evaluation has questions that take about a second of the processor's time each, by their number of
tokens: the share of the time that cleaning takes there is R15's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
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
  max_new_tokens: {tokens}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""
# lmms-eval sets up no logging of Python's own, so that this file shows what lowtide logs. On a busy machine
# the share of the time says little; so the processor's time is counted, from the first clean-up on.
SHOWING = """
import atexit, logging, os, time
show = logging.StreamHandler()
show.setFormatter(logging.Formatter('LOWTIDE %(message)s'))
log = logging.getLogger('lowtide')
log.addHandler(show)
log.setLevel('INFO')
if 'LOWTIDE_ADOPT' in os.environ:
    import lowtide._stages.stage
    own, times = lowtide._stages.stage.Stages.between, []

    def between(*arguments, **keywords):
        began = time.process_time()
        try:
            return own(*arguments, **keywords)
        finally:
            times.append((began, time.process_time()))

    def tell():
        spent = [end - began for began, end in times]
        whole = times[-1][1] - times[0][0]
        print(f'PROCESSOR cleaning {sum(spent):.2f} s of {whole:.2f} s ({100 * sum(spent) / whole:.1f} %), the first'
              f' {spent[0]:.2f} s, the last {spent[-1]:.2f} s, {len(spent)} in all', flush=True)

    lowtide._stages.stage.Stages.between = between
    atexit.register(tell)
"""
QUESTIONS = 3
TOKENS = 8
LONG_QUESTIONS = 60
LONG_QUESTION_S = 1.0
# The model has 256 positions, and the question needs some.
TOKENS_MOST = 220
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
    share_of_long_questions(folder)


def share_of_long_questions(folder: Path) -> None:
    """Evaluates questions of about a second of the processor each, and prints the share of the time that cleaning took."""
    tokens = min(TOKENS_MOST, max(1, round(LONG_QUESTION_S / seconds_a_token(folder / "model"))))
    write_task(folder / "tasks", "long", LONG_QUESTIONS, tokens)
    began = time.monotonic()
    said = evaluated(folder, "long", ["lowtide", "run", "--adopt", "lmms-eval", "--"], "long")
    took_s = time.monotonic() - began
    text = said.stdout + said.stderr
    lines = re.findall(r"LOWTIDE (.*)", text)
    after = [line for line in lines if line.startswith("after generate on")]
    share = next(line for line in lines if "cleaning took" in line)
    first, *later = [float(line.rsplit(" in ", 1)[1].split(" ms")[0]) for line in after]
    print(
        f"{LONG_QUESTIONS} questions of {tokens} tokens, the whole command in {took_s:.0f} s: {share};"
        f" {len(after)} clean-ups after generation, the first in {first:.0f} ms, the median of the others"
        f" {sorted(later)[len(later) // 2]:.0f} ms"
    )
    print("\n".join(re.findall(r"PROCESSOR (.*)", text)))


def seconds_a_token(folder: Path) -> float:
    """Returns the processor's time for a token, on one thread."""
    import torch
    import transformers

    torch.set_num_threads(1)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    question = torch.full((1, 8), 7)
    took = []
    for _ in range(2):
        began = time.process_time()
        model.generate(question, max_new_tokens=32, min_new_tokens=32, do_sample=False)
        took.append((time.process_time() - began) / 32)
    # The first one prepares.
    return took[1]


def prepare(folder: Path) -> int:
    """Writes the model, the tasks, and a file that shows lowtide's log. Returns the bytes of the model."""
    size = small_models.chat_llama(folder / "model")
    tasks = folder / "tasks"
    tasks.mkdir()
    (tasks / "visuals.py").write_text("def none(doc):\n    return []\n")
    for name in ("sums", "words"):
        write_task(tasks, name, QUESTIONS, TOKENS)
    (folder / "sitecustomize.py").write_text(SHOWING)
    return size


def write_task(tasks: Path, name: str, questions: int, tokens: int) -> None:
    file = tasks / f"{name}.json"
    rows = [{"question": f"{name} {at}", "answer": str(at)} for at in range(questions)]
    file.write_text("\n".join(map(json.dumps, rows)))
    (tasks / f"{name}.yaml").write_text(TASK.format(name=name, file=file, tokens=tokens))


def evaluated(
    folder: Path, name: str, before: list[str], tasks: str = "sums,words"
) -> subprocess.CompletedProcess[str]:
    """Runs an evaluation with lmms-eval's own command."""
    command = [*before, "python", "-m", "lmms_eval", "--model", "huggingface"]
    model = f"pretrained={folder / 'model'},device=cpu,device_map=cpu,trust_remote_code=True"
    command += ["--model_args", model]
    command += ["--tasks", tasks, "--include_path", str(folder / "tasks")]
    command += ["--batch_size", "1", "--log_samples", "--output_path", str(folder / name)]
    variables = {
        "PYTHONPATH": str(folder),
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "HF_HOME": str(folder / "home"),
        "CUDA_VISIBLE_DEVICES": "",
        # Threads of torch that wait for each other on busy cores made an evaluation last for minutes.
        "OMP_NUM_THREADS": "1",
    }
    return run(folder, command, **variables)


def answers(folder: Path, task: str) -> list[object]:
    """Returns the model's answers, as lmms-eval has stored them."""
    file = next(folder.rglob(f"*samples_{task}.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row["filtered_resps"] for row in sorted(rows, key=lambda row: row["doc_id"])]


if __name__ == "__main__":
    main()
