"""Twenty short prompts of mixed kinds. They repeat themselves, so that prompt lookup drafts, and break
their own patterns, so that much of what it drafts is rejected."""

PROMPTS = (
    "Rewrite with type hints:\ndef add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return a * b\n\n"
    "def add(a: int, b: int) -> int:\n",
    "for i in range(10):\n    print(i)\nfor j in range(20):\n    print(j)\nfor k in range(",
    "class Dog:\n    def speak(self):\n        return 'woof'\n\nclass Cat:\n    def speak(self):\n",
    "SELECT name FROM users WHERE age > 30;\nSELECT name FROM users WHERE city = 'Rome';\nSELECT",
    '{"id": 1, "name": "Ann", "age": 31}\n{"id": 2, "name": "Bob", "age": 27}\n{"id": 3, "name":',
    "Summarise: The ship left the harbour at dawn. The ship met a storm at noon. The ship came back "
    "to the harbour at night. Summary: The ship",
    "The rain fell on the roof. The rain fell on the road. The wind blew on the roof. The",
    "Question: What is two plus two? Answer: four. Question: What is three plus three? Answer: six. "
    "Question: What is four plus four? Answer:",
    "Extract the names: Alice met Bob in Paris. Carol met Dave in Rome. Names: Alice,",
    "red green blue red green yellow red green blue red blue green red green",
    "1 2 3 4 5 1 2 3 4 6 1 2 3 4 7 1 2 3 4",
    "Dear Ms Brown, thank you for your letter of 3 May. Dear Mr Green, thank you for your letter of",
    "To be, or not to be, that is the question. To sleep, or not to sleep, that is the",
    "| city | country |\n| Rome | Italy |\n| Paris | France |\n| Madrid | Spain |\n| Berlin |",
    "User: Hi!\nBot: Hi, how can I help?\nUser: What is rain?\nBot: Rain is water that falls from clouds.\n"
    "User: What is snow?\nBot:",
    "ERROR disk full on node 7\nWARN disk slow on node 8\nERROR disk full on node 9\nWARN disk slow on",
    "- wash the car\n- wash the dog\n- feed the dog\n- feed the cat\n- walk the",
    "Translate to French. cat: chat. dog: chien. house: maison. the cat: le chat. the dog:",
    "Step 1: open the box. Step 2: take the part out of the box. Step 3: put the part on the table. Step 4:",
    "Once upon a time there was a king. The king had a daughter. The daughter had a cat. The cat had a",
)
