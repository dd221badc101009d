"""AutoRAG 0.3.27, real trials: `autorag evaluate` with three rerankers, plain and adopted.

Small models with random weights stand in for the rerankers' own, which cannot be downloaded here. The
name of koreranker's model is fixed in AutoRAG, so that a folder of that name is in the working folder.
Everything else is AutoRAG's own: its command, its nodes, its modules.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import small_models
from running import run

MIB = 1 << 20
VARIABLES = {"COLUMNS": "200", "TOKENIZERS_PARALLELISM": "false"}

CONFIG = """
node_lines:
- node_line_name: line
  nodes:
  - node_type: passage_reranker
    strategy: {metrics: [retrieval_recall]}
    top_k: 2
    modules:
    - {module_type: sentence_transformer_reranker, model_name: models/cross-encoder}
    - {module_type: colbert_reranker, model_name: models/colbert}
    - {module_type: koreranker}
"""
SUBJECTS = ["tides", "moons", "rivers", "wells"]
# The rerankers' turns by AutoRAG's own code, with the one line that adopts it.
TURNS = """
import json, sys
import lowtide
adopted = lowtide.adopt("autorag")
import pandas
# Before the first stage, so that it is not charged for them.
import torch, transformers, sentence_transformers
from autorag.nodes.passagereranker import ColbertReranker, KoReranker, SentenceTransformerReranker
given = pandas.read_json("given.json")
turns = [(SentenceTransformerReranker, {"model_name": "models/cross-encoder"}),
         (ColbertReranker, {"model_name": "models/colbert"}), (KoReranker, {})]
results = [cls.run_evaluator(".", given, top_k=2, **more).to_dict() for cls, more in turns]
report = adopted.stages.report()
print("RESULT", json.dumps({"results": results, "replaced": adopted.replaced,
                            "report": report.to_dict(), "text": str(report)}))
"""


def main() -> None:
    folder = Path(sys.argv[1])
    sizes = prepare(folder)
    plain = trial(folder, "plain", [])
    adopted = trial(folder, "adopted", ["lowtide", "run", "--adopt", "autorag", "--"])
    same(folder)
    assert "lowtide" not in plain.stdout, plain.stdout
    # The adopted run says nothing on standard error that the plain one does not say.
    new = set(words(adopted.stderr)) - set(words(plain.stderr))
    assert not new, f"new on standard error: {sorted(new)}"
    assert "Exception ignored" not in adopted.stderr
    assert " busy, " not in adopted.stdout, adopted.stdout
    print(ending(adopted.stdout))
    by_one_line(folder, sizes)


def by_one_line(folder: Path, sizes: dict[str, int]) -> None:
    """Runs the rerankers' turns in a program that adopts AutoRAG itself, and checks the numbers."""
    turns = told(run(folder, [sys.executable, "-c", TURNS], **VARIABLES))
    report = turns["report"]
    print(turns["text"])
    print("replaced:", ", ".join(turns["replaced"]))
    assert len(report["stages"]) == 3
    assert report["sum_bytes"] > sum(sizes.values()), (report["sum_bytes"], sizes)
    # Beside what the process has without a model, the peak is that of the largest, not the sum.
    without = max(stage["receipt"]["after"]["own_bytes"] for stage in report["stages"])
    peak = report["peak_bytes"] - without
    print(f"models: {sizes}; peak beside the process: {peak}")
    assert peak < report["largest_bytes"] * 1.25 < report["sum_bytes"], report
    assert "autorag.utils.util.empty_cuda_cache" in turns["replaced"]
    for stage in report["stages"]:
        freed_whole(stage["receipt"])


def freed_whole(receipt: dict) -> None:
    """Fails unless the model's blocks were all freed.

    The verdict may be `partial` here: pages of the host's allocator on which other blocks live stay.
    """
    assert receipt["verdict"] in ("released", "partial"), receipt
    before, after, claim = receipt["before"], receipt["after"], receipt["claim"]["bytes"]
    dropped = before["allocated_bytes"] - after["allocated_bytes"]
    cached = after["reserved_bytes"] - after["allocated_bytes"]
    print(
        f"{receipt['name']}: {receipt['verdict']}; claimed {claim / MIB:.1f} MiB, the device's number fell by"
        f" {receipt['freed_bytes'] / MIB:.1f}, blocks by {dropped / MIB:.1f}; {cached / MIB:.1f} are cached"
    )
    assert dropped > 0.95 * claim, receipt


def prepare(folder: Path) -> dict[str, int]:
    """Writes the models, the questions and the texts. Returns the models' sizes."""
    import pandas

    sizes = {
        "cross-encoder": small_models.bert(folder / "models/cross-encoder", 8, scores=True),
        "colbert": small_models.bert(folder / "models/colbert", 16, scores=False),
        "ko-reranker": small_models.bert(folder / "Dongjin-kr/ko-reranker", 12, scores=True),
    }
    texts = [f"a text about {subject} and what they hold" for subject in SUBJECTS]
    ids = [f"text-{subject}" for subject in SUBJECTS]
    now = pandas.Timestamp("2026-01-01")
    details = [{"last_modified_datetime": now} for _ in ids]
    pandas.DataFrame({"doc_id": ids, "contents": texts, "metadata": details}).to_parquet(
        folder / "corpus.parquet"
    )
    questions = [f"which text is about {subject}" for subject in SUBJECTS]
    asked = {
        "qid": [f"question-{subject}" for subject in SUBJECTS],
        "query": questions,
        "retrieval_gt": [[[one]] for one in ids],
        "generation_gt": [[one] for one in texts],
    }
    # What a retrieval would have found: the trial has the node of the rerankers only.
    given = pandas.DataFrame(
        {
            **asked,
            "retrieved_contents": [texts] * len(ids),
            "retrieved_ids": [ids] * len(ids),
            "retrieve_scores": [[1.0] * len(ids)] * len(ids),
        }
    )
    given.to_parquet(folder / "qa.parquet")
    given.to_json(folder / "given.json")
    (folder / "config.yaml").write_text(CONFIG)
    return sizes


def trial(folder: Path, name: str, before: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a trial with AutoRAG's own command."""
    command = [*before, "autorag", "evaluate", "--config", "config.yaml", "--skip_validation", "1"]
    command += ["--qa_data_path", "qa.parquet", "--corpus_data_path", "corpus.parquet"]
    return run(folder, [*command, "--project_dir", name], **VARIABLES)


def same(folder: Path) -> None:
    """Fails if the adopted trial found something else than the plain one."""
    import pandas

    found = [
        pandas.read_parquet(folder / name / "0/line/passage_reranker" / f"{module}.parquet")
        for name in ("plain", "adopted")
        for module in range(3)
    ]
    for plain, adopted in zip(found[:3], found[3:], strict=True):
        pandas.testing.assert_frame_equal(plain, adopted)


def words(text: str) -> list[str]:
    """Returns the lines of a text without numbers and progress, to be compared."""
    lines = (re.sub(r"[\d.:]+", "#", line).strip() for line in re.split(r"[\r\n]", text))
    return [line for line in lines if line and "it/s" not in line and "%|" not in line]


def ending(text: str) -> str:
    """Returns what lowtide has logged."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if "stage" in line or "peak" in line or "MiB" in line)


def told(done: subprocess.CompletedProcess[str]) -> dict:
    """Returns what a child has printed as its result."""
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


if __name__ == "__main__":
    main()
