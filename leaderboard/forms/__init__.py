"""Write table rows as text: terminal, Markdown, CSV, LaTeX, HTML page, charts and figure."""
