"""For the authors of the course: notebooks executed, tidied, checked and exported. No notebook walks this folder.

    uv run python -m diffgemma_lite.notebook_tools run [NAME ...]      execute from top to bottom, tidy, write back
    uv run python -m diffgemma_lite.notebook_tools tidy [NAME ...]     tidy without executing (after a change of prose)
    uv run python -m diffgemma_lite.notebook_tools check [NAME ...]    say what may not be committed
    uv run python -m diffgemma_lite.notebook_tools export FOLDER [NAME ...]    pages that work with the network off
    uv run python -m diffgemma_lite.notebook_tools slides FOLDER [NAME ...]    presentations, a slide for each heading

A NAME is a path or the beginning of a file name ("07"); none means all. Outputs are committed, so what differs between
two runs on two machines should be timings and last digits only. Unlike with `jupyter execute`, no widget state is stored:
reopened, it would show an error where the static twin of the output belongs.

Run and tidy put a picture beside each plotly figure, drawn by kaleido in a Chrome or Chromium of this machine.

execute.py runs and tidies, pictures.py draws, gate.py says what may not be committed, pages.py exports, __main__.py is the
command.
"""
