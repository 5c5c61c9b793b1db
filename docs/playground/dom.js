// Makes elements.

export function element(name, properties = {}, ...children) {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
}

export function button(label, onclick) {
    return element("button", { type: "button", onclick }, label);
}
