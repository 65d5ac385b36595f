"""Renders chat templates with jinja2 in the environment that Hugging Face gives them, for tests/chat.rs to match.

    pip install jinja2; python scripts/make_chat_fixtures.py > tests/data/chat-templates.json

The templates are ours; between them they use what the templates of published models use.
"""

import datetime
import json
import sys

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = 1_721_995_445

TEMPLATES = {
    "plain turns": "{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "blocks on their own lines": """{{ bos_token }}
{% for message in messages %}
    {% if message['role'] == 'system' %}
[SYS] {{ message['content'] | trim }}
    {% elif loop.last and message.role == 'user' %}
[LAST {{ loop.index }}/{{ loop.length }}] {{ message.content }}
    {% else %}
{{- message.role | upper }}: {{ message.content.strip() -}}
    {%- endif %}
{% endfor %}
{% if add_generation_prompt %}
A:
{%- endif %}
""",
    "turns must alternate": "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + (first if loop.first else '') + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "header with a date": "{{- bos_token }}\n{%- if strftime_now is defined %}\n{%- set today = strftime_now('%d %b %Y') %}\n"
    "{%- else %}\n{%- set today = '26 Jul 2024' %}\n{%- endif %}\nToday: {{ today }}\n\n"
    "{%- for message in messages %}\n{{- '<|start|>' + message['role'] + '<|stop|>\\n\\n' + message['content'] | trim + '<|eot|>' }}\n"
    "{%- endfor %}",
    "state in a namespace": "{%- set ns = namespace(seen=false, count=0) -%}\n{%- for m in messages -%}\n"
    "{%- if m.role == 'user' and not ns.seen -%}{%- set ns.seen = true -%}first user: {{ m.content }}\n{%- endif -%}\n"
    "{%- set ns.count = ns.count + m.content | length -%}\n{%- endfor -%}\n|{{ ns.count }}|{{ messages | length }}",
    "python methods": "{% for m in messages if m.content %}{{ m.content.split(' ')[0].lower().replace('h', 'j') }}"
    "{% if m.content.startswith('He') %}!{% endif %}{{ m.get('name', 'none') }},{% endfor %}"
    "{% for key, value in messages[0].items() %}{{ key }}={{ value | tojson }};{% endfor %}",
    "json": "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ {'a': [1, 2.5, none, true, '<&>\\u00e9']} | tojson }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }};"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "macro": "{% macro turn(role, content) -%}\n<{{ role }}>{{ content }}</{{ role }}>\n{%- endmacro -%}\n"
    "{% for m in messages %}\n{{ turn(m.role, m.content) }}\n{% endfor %}",
    "reversed and sliced": "{% for m in messages[::-1] %}{{ m.content[:3] }}~{% endfor %}{{ messages[-1].content[-2:] }}",
    "what is not there": "[{{ missing }}][{{ messages[0].missing }}]{% if tools is defined and tools %}T{% else %}-{% endif %}"
    "{{ 'x' if messages[0].tool_calls is not defined }}{{ (missing | default('d')) }}",
    "attribute of what is not there": "{{ missing.part }}",
    "trailing newline": "a\n{% if true %}\nb\n{% endif %}\n  {% if true %}c{% endif %}\n\n",
}

CHATS = [
    [("user", "Hello there")],
    [("system", "  Be brief. "), ("user", "Hi"), ("assistant", "Hello!"), ("user", " Tell me\nmore <b>&amp;</b> ")],
    [("user", "a"), ("user", "b")],
    [("user", "")],
]


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise TemplateError(message)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = raise_exception
cases = []
for name, template in TEMPLATES.items():
    for chat in CHATS:
        for has_clock in (False, True) if "date" in name else (False,):
            messages = [{"role": role, "content": content} for role, content in chat]
            clock = {"strftime_now": strftime_now} if has_clock else {}
            case = {"name": name, "template": template, "messages": messages, "now_unix_s": NOW if has_clock else None}
            try:
                case["prompt"] = environment.from_string(template).render(
                    messages=messages, add_generation_prompt=len(chat) % 2 == 1, bos_token="<s>", eos_token="</s>", **clock
                )
            except TemplateError as error:
                case["refused"] = str(error)
            case["add_generation_prompt"] = len(chat) % 2 == 1
            cases.append(case)
json.dump({"cases": cases}, sys.stdout, indent=1)
print()
